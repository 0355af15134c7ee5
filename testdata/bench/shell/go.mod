module picket/bench/shell

go 1.26.5

require (
	mvdan.cc/sh/v3 v3.14.1
	picket v0.0.0
)

replace picket => ../../..
