"""Files of data read: images, label maps, lists, arrays, and where they lie."""
