"""``hvdrun blackbox``: what the ranks of a job did last, for people and for PyTorch's analyzer."""
