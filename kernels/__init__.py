"""What is tuned. The only room that imports Pallas Mosaic GPU."""
