"""How time is taken: one file a method. Times of different methods are never compared."""
