"""An example of an installed plug-in: the method `confident` and the benchmark `gratings`."""
