module picket/testdata/bench/start

go 1.26.5
