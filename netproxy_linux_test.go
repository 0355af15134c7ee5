package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"picket/tools"
)

func TestBoxProxyProto(t *testing.T) {
	s := testBox(t, func(c *boxConfig) { c.Network = "proxy" })
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("hello")) }))
	defer srv.Close()
	c := sh("env | grep -i proxy; curl -sS -m 5 http://example.com/; curl -sS -m 5 http://127.0.0.1:22; python3 -c 'import socket;socket.create_connection((\"1.1.1.1\",53))'")
	c.Network = true
	c.Connect = func(ctx context.Context, d tools.Dest) error { t.Logf("%+v", d); return errHello }
	res := s.Exec(context.Background(), c)
	t.Logf("%s\n%s\n%+v", res.Stdout, res.Stderr, res)
}
