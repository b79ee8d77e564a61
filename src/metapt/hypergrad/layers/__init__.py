"""Layers made to be differentiated twice: a hypergradient takes the derivative of their derivative."""
