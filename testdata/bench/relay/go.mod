module picket/testdata/bench/relay

go 1.26.5
