package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// forward makes an address inside the cluster's network namespace reachable at a loopback address of the machine: it
// listens in the namespace it was started in and connects in that of the process -pid, and ends when that process ends.
// A connection is handed on byte by byte (spliced by the kernel), so that exec streams keep their speed.
func forward() error {
	pid := flag.Int("pid", 0, "a process in the network namespace to connect in")
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	to := flag.String("to", "", "address to connect to, as IP:PORT")
	record := flag.String("record", "", "file that gets the address listened on, once connections are taken")
	flag.Parse()
	target, err := netip.ParseAddrPort(*to)
	if err != nil {
		return fmt.Errorf("-to: %w", err)
	}
	watched, err := unix.PidfdOpen(*pid, 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", *pid, err)
	}
	namespace, err := os.Open("/proc/" + strconv.Itoa(*pid) + "/ns/net")
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	sockets := make(chan socket)
	go openSockets(int(namespace.Fd()), sockets)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				fmt.Fprintln(os.Stderr, "accept:", err)
				os.Exit(1)
			}
			go serve(connection.(*net.TCPConn), target, sockets)
		}
	}()
	if err := writeWhole(*record, listener.Addr().String()+"\n"); err != nil {
		return err
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(watched), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

type socket struct {
	fd  int
	err error
}

// openSockets makes sockets in another network namespace. A socket stays in the namespace it was made in, so only this
// one thread has to enter it; being locked to the goroutine and never released, it is used for nothing else.
func openSockets(namespace int, sockets chan<- socket) {
	runtime.LockOSThread()
	if err := unix.Setns(namespace, unix.CLONE_NEWNET); err != nil {
		fmt.Fprintln(os.Stderr, "entering the cluster's network namespace:", err)
		os.Exit(1)
	}
	for {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		sockets <- socket{fd, err}
	}
}

func serve(outside *net.TCPConn, target netip.AddrPort, sockets <-chan socket) {
	defer outside.Close()
	inside, err := connect(target, <-sockets)
	if err != nil {
		fmt.Fprintf(os.Stderr, "connecting to %s: %v\n", target, err)
		return
	}
	defer inside.Close()
	done := make(chan struct{})
	go func() {
		pass(inside, outside)
		close(done)
	}()
	pass(outside, inside)
	<-done
}

func connect(target netip.AddrPort, s socket) (*net.TCPConn, error) {
	if s.err != nil {
		return nil, s.err
	}
	file := os.NewFile(uintptr(s.fd), "socket")
	defer file.Close() // net.FileConn duplicates it
	err := unix.Connect(s.fd, &unix.SockaddrInet4{Port: int(target.Port()), Addr: target.Addr().As4()})
	if err != nil {
		return nil, err
	}
	connection, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	return connection.(*net.TCPConn), nil
}

// pass copies until from ends, then ends to for writing only: the answer may still be on its way.
func pass(to, from *net.TCPConn) {
	_, err := io.Copy(to, from)
	if err != nil { // a broken side ends both, as without a forwarder
		_ = to.SetLinger(0)
		_ = to.Close()
		_ = from.Close()
		return
	}
	_ = to.CloseWrite()
}

// writeWhole writes a file that is never seen half-written.
func writeWhole(path, text string) error {
	if path == "" {
		_, err := fmt.Print(text)
		return err
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
