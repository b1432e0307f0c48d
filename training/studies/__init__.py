"""Studies: grids of recipes, trained with several seeds, measured, and compared; each a value in its paper's file."""
