"""Reading data files: images, label maps, lists, arrays, and their folders."""
