module picket/bench/shell

go 1.26.5

require (
	mvdan.cc/sh/v3 v3.14.1
	picket v0.0.0
)

require (
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/text v0.44.0 // indirect
)

replace picket => ../../..
