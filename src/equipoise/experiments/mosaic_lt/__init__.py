"""The methods of Table 2, and others, on 200 long-tailed classes of boxes."""
