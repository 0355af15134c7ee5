module picket/testdata/sdk/run

go 1.26.5
