"""The methods of Table 2 on a long-tailed PASCAL VOC."""
