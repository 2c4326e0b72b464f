"""The methods of Table 1 on long-tailed photographs of 200 classes."""
