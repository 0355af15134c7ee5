package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"picket/tools"
)

// A boxed call with network keeps its own network namespace. The first thing that
// runs in it is picket's own binary, as the shim: it opens the listeners there,
// passes them out to picket (unix(7), SCM_RIGHTS) and becomes the command. A
// socket stays in the namespace in which it was made, so what the command
// connects to on its loopback is accepted by picket outside.

const (
	boxShim  = "/run/picket" // picket's binary in the box, and the shim's argv[0]
	shimWord = "shim:"       // before the descriptor and the ports, in its argv[1]
)

// shim becomes the command of a box if this process was started as its shim. On
// an error of its own it ends as a shell does that cannot start a program.
func shim() {
	if len(os.Args) < 3 || os.Args[0] != boxShim {
		return
	}
	fd, ports, ok := parseShim(os.Args[1])
	if !ok {
		return
	}
	err := passListeners(fd, ports)
	if err == nil {
		var program string
		if program, err = exec.LookPath(os.Args[2]); err == nil {
			err = syscall.Exec(program, os.Args[2:], os.Environ())
		}
	}
	fmt.Fprintf(os.Stderr, "picket: the command could not be started: %v\n", err)
	os.Exit(127)
}

func shimArg(fd int, ports []int) string {
	words := []string{strconv.Itoa(fd)}
	for _, p := range ports {
		words = append(words, strconv.Itoa(p))
	}
	return shimWord + strings.Join(words, ",")
}

func parseShim(arg string) (fd int, ports []int, ok bool) {
	rest, ok := strings.CutPrefix(arg, shimWord)
	for word := range strings.SplitSeq(rest, ",") {
		n, err := strconv.Atoi(word)
		ok = ok && err == nil && n > 2
		ports = append(ports, n)
	}
	return ports[0], ports[1:], ok
}

// passListeners opens the listeners, passes them on and waits until they were
// taken. Nothing of them is left in this process.
func passListeners(fd int, ports []int) error {
	defer syscall.Close(fd)
	var fds []int
	for _, port := range ports {
		l, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer syscall.Close(l)
		if err := errors.Join(syscall.Bind(l, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(l, 128)); err != nil {
			return fmt.Errorf("port %d: %v", port, err)
		}
		fds = append(fds, l)
	}
	err := syscall.Sendmsg(fd, []byte{1}, syscall.UnixRights(fds...), nil, 0)
	if err == nil {
		var n int
		if n, err = syscall.Read(fd, make([]byte, 1)); err == nil && n != 1 {
			err = errors.New("picket did not take the listeners")
		}
	}
	return err
}

// openProxy makes the command of a call start by the shim, and returns the
// proxy that answers it and the place of the shim. The descriptor goes to bubblewrap after the others.
func (s *sandbox) openProxy(ctx *clock, h *holder, c *tools.Command) (*netProxy, mount, error) {
	self, err := s.shimFile()
	if err != nil {
		return nil, mount{}, err
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, mount{}, err
	}
	ours := os.NewFile(uintptr(pair[0]), "listeners")
	defer ours.Close()
	fd := h.give(os.NewFile(uintptr(pair[1]), "listeners"))
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, mount{}, err
	}
	c.Argv = slices.Concat([]string{boxShim, shimArg(fd, s.netPorts())}, c.Argv)
	p := newNetProxy(ctx, c.Connect, s.dial, ctx.hold)
	p.running.Go(func() {
		defer context.AfterFunc(p.ctx, func() { conn.Close() })()
		listeners, err := takeListeners(conn.(*net.UnixConn), len(s.netPorts()))
		conn.Close()
		if err == nil {
			p.serve(listeners, s.netPorts())
		}
	})
	return p, mount{boxShim, self, mountRO}, nil
}

// shimFile is where picket's own binary lies, which can have been replaced or
// removed since picket was started.
func (s *sandbox) shimFile() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	running, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", err
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(running, now) {
		return "", fmt.Errorf("picket's program file %q was replaced or removed: start picket again", path)
	}
	return path, nil
}

// takeListeners waits for the shim and lets it go on. What comes is taken for no
// more than sockets: were they others than its own, they would still be the box's.
func takeListeners(conn *net.UnixConn, want int) (out []net.Listener, err error) {
	oob := make([]byte, syscall.CmsgSpace(4*want))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
	}
	messages, err := syscall.ParseSocketControlMessage(oob[:n])
	for i := range messages {
		fds, _ := syscall.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			f := os.NewFile(uintptr(fd), "listener")
			l, lerr := net.FileListener(f)
			f.Close()
			if err = errors.Join(err, lerr); lerr == nil {
				out = append(out, l)
			}
		}
	}
	if err == nil && len(out) != want {
		err = errors.New("the box passed out no listener")
	}
	if err == nil {
		_, err = conn.Write([]byte{1})
	}
	if err != nil {
		for _, l := range out {
			l.Close()
		}
	}
	return out, err
}
