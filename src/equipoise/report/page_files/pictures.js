// Pictures of what was confused or missed most: each with its class, what was predicted, and how sure the model was.
"use strict";
(() => {
  const { models, chosen, drawn, add } = equipoise;
  const places = document.querySelectorAll("[data-pictures]");
  if (places.length) {
    drawn.push(() => {
      for (const place of places) {
        place.replaceChildren();
        const shown = models[chosen[place.dataset.pictures]].pictures || [];
        for (const { source, name, below: said, sure, words } of shown) {
          const figure = add(place, "figure", undefined, "picture");
          const image = add(figure, "img");
          image.src = source;
          image.alt = words;
          const below = add(figure, "figcaption");
          add(below, "b", name);
          add(below, "span", said);
          add(below, "small", sure);
        }
        if (!shown.length) add(place, "p", "There are no pictures of this model's mistakes.", "empty");
      }
    });
  }
})();
