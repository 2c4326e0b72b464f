"""Which item comes next: samplers that give indices only."""
