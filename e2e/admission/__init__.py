"""What a real API server admits: Pod Security admission, and the policies of the chart."""
