"""The toy of Revisiting: lines embedded on a circle, with and without rho-regularisation."""
