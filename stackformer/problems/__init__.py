"""What is trained with the engine: formal languages and text."""
