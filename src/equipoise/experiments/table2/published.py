"""Table 2 as it was published (LVIS v1 val), and the names of its rows and columns. Nothing here needs torch."""

from __future__ import annotations

NAME = "table2"
BACKBONES = {"resnet50": "ResNet-50", "resnet101": "ResNet-101"}
MOST = 300  # detections of an image that count in LVIS's evaluation
CONTROL = "rfs_longer"  # a second stage that only trains longer

# Titles of the rows, by the name in paths and commands.
METHODS = {
    "rfs": "RFS",
    "rfs_longer": "RFS, classifier 10 epochs more",
    "crt": "cRT",
    "lws": "LWS",
    "eql": "EQL",
    "balanced_sigmoid": "Balanced Sigmoid",
    "balanced_sigmoid_released": "Balanced Sigmoid, released form",
}

# AP_mask, AP_f, AP_c, AP_r, AP_box, by backbone and method.
PAPER = {
    "resnet50": {
        "rfs": (22.1, 27.8, 21.1, 11.6, 23.6),
        "crt": (23.2, 27.8, 22.5, 14.7, 24.8),
        "lws": (23.3, 27.8, 22.5, 14.9, 24.8),
        "eql": (24.2, 27.5, 24.2, 16.5, 25.8),
        "balanced_sigmoid": (25.1, 29.3, 24.0, 18.3, 26.7),
    },
    "resnet101": {
        "rfs": (23.2, 28.8, 22.0, 13.5, 24.7),
        "crt": (23.9, 28.7, 22.7, 15.8, 25.6),
        "lws": (24.2, 28.8, 23.1, 16.5, 24.7),
        "eql": (25.4, 28.8, 25.3, 18.5, 27.3),
        "balanced_sigmoid": (26.4, 30.2, 25.4, 20.1, 28.4),
    },
}
