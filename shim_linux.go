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
	program := ""
	if err == nil {
		program, err = exec.LookPath(os.Args[2])
	}
	if err == nil {
		err = syscall.Exec(program, os.Args[2:], os.Environ())
	}
	fmt.Fprintf(os.Stderr, "picket: the command could not be started: %v\n", err)
	os.Exit(127)
}

func shimArg(fd int, ports []int) string {
	arg := shimWord + strconv.Itoa(fd)
	for _, p := range ports {
		arg += "," + strconv.Itoa(p)
	}
	return arg
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
	if err := syscall.Sendmsg(fd, []byte{1}, syscall.UnixRights(fds...), nil, 0); err != nil {
		return err
	}
	n, err := syscall.Read(fd, make([]byte, 1))
	if err == nil && n != 1 {
		err = errors.New("picket did not take the listeners")
	}
	return err
}

// openProxy makes the command of a call start by the shim, and returns the
// proxy that answers it and the place of the shim. The descriptor goes to
// bubblewrap after the others.
func (s *sandbox) openProxy(ctx *clock, h *holder, c *tools.Command) (p *netProxy, m mount, err error) {
	m = mount{dst: boxShim, kind: mountRO}
	if m.src, err = ownFile(); err != nil {
		return nil, m, err
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, m, err
	}
	ours := os.NewFile(uintptr(pair[0]), "listeners")
	defer ours.Close()
	fd, ports := h.give(os.NewFile(uintptr(pair[1]), "listeners")), s.netPorts()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, m, err
	}
	c.Argv = slices.Concat([]string{boxShim, shimArg(fd, ports)}, c.Argv)
	p = newNetProxy(ctx, c.Connect, s.dial, ctx.hold)
	context.AfterFunc(p.ctx, func() { conn.Close() })
	p.running.Go(func() {
		if listeners, err := takeListeners(conn.(*net.UnixConn), len(ports)); err == nil {
			p.serve(listeners, ports)
		}
		conn.Close()
	})
	return p, m, nil
}

// ownFile is where picket's own binary lies, which can have been replaced or
// removed since picket was started; proc_pid_exe(5).
func ownFile() (string, error) {
	path, err := os.Readlink("/proc/self/exe")
	if path, gone := strings.CutSuffix(path, " (deleted)"); gone {
		err = fmt.Errorf("picket's program file %q was replaced or removed: start picket again", path)
	}
	return path, err
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
	for _, m := range messages {
		fds, _ := syscall.ParseUnixRights(&m)
		for _, fd := range fds {
			f := os.NewFile(uintptr(fd), "listener")
			if l, err := net.FileListener(f); err == nil {
				out = append(out, l)
			}
			f.Close()
		}
	}
	if err == nil && len(out) == want {
		_, err = conn.Write([]byte{1})
	} else {
		err = errors.New("the box passed out no listener")
	}
	if err != nil {
		for _, l := range out {
			l.Close()
		}
	}
	return out, err
}
