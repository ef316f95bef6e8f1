"""What is known: records of measurements, and the database that keeps them."""
