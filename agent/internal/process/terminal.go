package process

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// terminal is the agent's end of a pseudo-terminal.
type terminal struct {
	*os.File
	midLine atomic.Bool
}

// openTerminal gives both ends; the second is for the process, and is closed when it has been started.
func openTerminal(rows, cols uint16) (*terminal, *os.File, error) {
	// Nonblocking from the start, so that os.File polls it and deadlines work.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	master := os.NewFile(uintptr(fd), "/dev/ptmx")
	err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	var number uint32
	if err == nil {
		number, err = unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	}
	var slave *os.File
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	t := &terminal{File: master}
	if err == nil && rows > 0 && cols > 0 {
		err = t.resize(rows, cols)
	}
	if err != nil {
		master.Close()
		if slave != nil {
			slave.Close()
		}
		return nil, nil, err
	}
	return t, slave, nil
}

func (t *terminal) resize(rows, cols uint16) error {
	conn, err := t.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	return errors.Join(err, failed)
}

// typed notes whether the input so far ends within a line.
func (t *terminal) typed(b []byte) {
	if len(b) > 0 {
		last := b[len(b)-1]
		t.midLine.Store(last != '\n' && last != '\r')
	}
}

func (t *terminal) eof() []byte {
	if t.midLine.Load() {
		return []byte{4, 4}
	}
	return []byte{4}
}
