package process

import "os"

// plumbing is the files between the agent and a process.
type plumbing struct {
	theirs   [3]*os.File
	in       *os.File // nil without stdin
	outs     []*os.File
	terminal *terminal
}

func connect(s Spec) (p *plumbing, err error) {
	p = &plumbing{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if s.TTY {
		master, slave, err := openTerminal(s.Rows, s.Cols)
		if err != nil {
			return p, err
		}
		p.terminal, p.in = master, master.File
		p.outs = []*os.File{master.File}
		p.theirs = [3]*os.File{slave, slave, slave}
		return p, nil
	}
	if s.Stdin {
		p.theirs[0], p.in, err = os.Pipe()
	} else {
		p.theirs[0], err = os.Open(os.DevNull)
	}
	for i := 1; i < 3 && err == nil; i++ {
		var r *os.File
		if r, p.theirs[i], err = os.Pipe(); err == nil {
			p.outs = append(p.outs, r)
		}
	}
	return p, err
}

func (p *plumbing) closeTheirs() {
	for _, f := range p.theirs {
		if f != nil {
			f.Close() // a terminal is there three times: closing it again does nothing
		}
	}
}

func (p *plumbing) close() {
	p.closeTheirs()
	if p.in != nil {
		p.in.Close()
	}
	for _, f := range p.outs {
		f.Close()
	}
}
