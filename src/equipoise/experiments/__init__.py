"""The paper's tables and ours, one folder each: the recipe, what was published, and how it is rendered."""
