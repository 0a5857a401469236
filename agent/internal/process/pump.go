package process

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox-operator.dev/agent/internal/wire"
)

// linger is how long after the end of a process a pipe that a background child still holds is listened to.
const linger = 100 * time.Millisecond

// readChunk waits until f can be read and only then takes a buffer, so that many quiet processes cost little.
func readChunk(f *os.File, use func([]byte)) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var buf *[]byte
	var n int
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		buf = wire.Buffer()
		n, failed = readFD(int(fd), *buf)
		if failed == syscall.EAGAIN {
			wire.Release(buf)
			buf = nil
			return false
		}
		return true
	})
	if err != nil {
		return err
	}
	defer wire.Release(buf)
	if failed != nil {
		return failed
	}
	if n == 0 {
		return io.EOF
	}
	use((*buf)[:n])
	return nil
}

func readFD(fd int, buf []byte) (int, error) {
	for {
		n, err := syscall.Read(fd, buf)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// pump moves what the process writes into its log until the pipe ends, or until the deadline that is set when the
// process has. A pipe that a background child then still holds is read on into nothing, so that the child neither
// blocks nor dies of SIGPIPE.
func (p *Process) pump(kind wire.Kind, f *os.File) {
	defer guard("output of a process")
	for {
		err := readChunk(f, func(b []byte) { p.out.append(kind, b) })
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			// The log may have been full all the while: what was in the pipe at the end still counts.
			if p.rest(kind, f) {
				_ = f.SetReadDeadline(time.Time{})
				go drain(f)
			} else {
				f.Close()
			}
			return
		default: // io.EOF, or EIO from a terminal that nobody holds any more
			f.Close()
			return
		}
	}
}

// rest takes what is in the pipe, and no more than a pipe holds, since someone may go on writing.
// It says whether the pipe is still open.
func (p *Process) rest(kind wire.Kind, f *os.File) (open bool) {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	buf := wire.Buffer()
	defer wire.Release(buf)
	limit, n := -1, 0
	for err == nil {
		cerr := conn.Control(func(fd uintptr) {
			if limit < 0 {
				if limit, err = unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0); err != nil {
					limit, err = pieceMax, nil // a terminal
				}
			}
			n, err = readFD(int(fd), (*buf)[:min(len(*buf), limit)])
		})
		if cerr != nil || err != nil || n == 0 {
			break
		}
		p.out.append(kind, (*buf)[:n])
		if limit -= n; limit <= 0 {
			return true
		}
	}
	return err == syscall.EAGAIN
}

func drain(f *os.File) {
	defer guard("draining a pipe")
	defer f.Close()
	for readChunk(f, func([]byte) {}) == nil {
	}
}
