"""Parts of a pretrained trunk that a run trains, and low-rank adapters of its linear layers."""
