"""One readable file a table: the base recipe, then one line a method."""
