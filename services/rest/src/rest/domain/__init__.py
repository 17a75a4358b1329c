"""What REST decides and shows: values in, values out."""
