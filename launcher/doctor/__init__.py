"""`hvdrun doctor`: examines the hosts, draws its findings and reports them."""
