package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// User is whom an operation acts as: a name or a uid, given as a string or a number; empty for the agent itself.
type User string

// UnmarshalJSON takes a string, a whole number, or null.
func (u *User) UnmarshalJSON(b []byte) error {
	if b[0] == '"' || string(b) == "null" {
		return (*Name)(u).UnmarshalJSON(b)
	}
	var uid uint32
	if err := json.Unmarshal(b, &uid); err != nil {
		return errors.New("a user is a name or a uid")
	}
	*u = User(b)
	return nil
}

// Common is in every request.
type Common struct {
	Op   string `json:"op"`
	User User   `json:"user"`
}

// The requests, one type for each operation, so that a field of another operation is refused like an unknown one.
type (
	Hello     struct{ Common }
	Processes struct{ Common }

	Exec struct {
		Common
		Argv      []Name      `json:"argv"`
		Env       Environment `json:"env"`
		Cwd       Name        `json:"cwd"`
		Stdin     bool        `json:"stdin"`
		TTY       bool        `json:"tty"`
		Rows      uint16      `json:"rows"`
		Cols      uint16      `json:"cols"`
		TimeoutMS int64       `json:"timeout_ms"`
		Detach    bool        `json:"detach"`
	}
	Attach struct {
		Common
		ID     string `json:"id"`
		BootID string `json:"boot_id"`
		Offset uint64 `json:"offset"`
	}
	Kill struct {
		Common
		ID     string `json:"id"`
		BootID string `json:"boot_id"`
	}
	Read struct {
		Common
		Path   Name   `json:"path"`
		Offset int64  `json:"offset"`
		Limit  *int64 `json:"limit"`
		Lane   string `json:"lane"`
	}
	Write struct {
		Common
		Path      Name    `json:"path"`
		Mode      *uint32 `json:"mode"`
		Parents   bool    `json:"parents"`
		Exclusive bool    `json:"exclusive"`
		Lane      string  `json:"lane"`
	}
	List struct {
		Common
		Path Name `json:"path"`
	}
	Stat struct {
		Common
		Path   Name `json:"path"`
		Follow bool `json:"follow"`
	}
	Mkdir struct {
		Common
		Path    Name    `json:"path"`
		Parents bool    `json:"parents"`
		Mode    *uint32 `json:"mode"`
	}
	Remove struct {
		Common
		Path      Name `json:"path"`
		Recursive bool `json:"recursive"`
		MissingOK bool `json:"missing_ok"`
	}
	Move struct {
		Common
		Source      Name `json:"source"`
		Destination Name `json:"destination"`
		Replace     bool `json:"replace"`
	}
	Archive struct {
		Common
		Path Name   `json:"path"`
		Skip []Name `json:"skip"`
		Lane string `json:"lane"`
	}
	Extract struct {
		Common
		Path       Name   `json:"path"`
		MaxMembers *int64 `json:"max_members"`
		MaxBytes   *int64 `json:"max_bytes"`
		StripRoot  Name   `json:"strip_root"`
		LinksAsIs  bool   `json:"links_as_is"`
		Lane       string `json:"lane"`
	}
	Forward struct {
		Common
		Port int `json:"port"`
	}
	// Lane is the request of a lane, and of nothing else.
	Lane struct {
		Common
		ID string `json:"id"`
	}
)

var requests = map[string]func() any{
	"hello":     func() any { return new(Hello) },
	"exec":      func() any { return new(Exec) },
	"attach":    func() any { return new(Attach) },
	"kill":      func() any { return new(Kill) },
	"processes": func() any { return new(Processes) },
	"read":      func() any { return new(Read) },
	"write":     func() any { return new(Write) },
	"list":      func() any { return new(List) },
	"stat":      func() any { return new(Stat) },
	"mkdir":     func() any { return new(Mkdir) },
	"remove":    func() any { return new(Remove) },
	"move":      func() any { return new(Move) },
	"archive":   func() any { return new(Archive) },
	"extract":   func() any { return new(Extract) },
	"forward":   func() any { return new(Forward) },
	"lane":      func() any { return new(Lane) },
}

// Decode gives the request of a line as a pointer to one of the types above.
func Decode(line []byte) (any, error) {
	var common struct {
		Op *string `json:"op"`
	}
	if err := json.Unmarshal(line, &common); err != nil {
		return nil, Fail(InvalidRequest, "the request is not an object of JSON: %s", describe(err))
	}
	if common.Op == nil {
		return nil, Fail(InvalidRequest, "the request names no op")
	}
	make, ok := requests[*common.Op]
	if !ok {
		return nil, Fail(UnknownOperation, "unknown operation %.64q", *common.Op)
	}
	request := make()
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields() // so that a newer client learns that it is not understood
	if err := d.Decode(request); err != nil {
		return nil, Fail(InvalidRequest, "%s: %s", *common.Op, describe(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, Fail(InvalidRequest, "%s: something follows the request", *common.Op)
	}
	return request, nil
}

// describe drops encoding/json's prefix, and bounds what quotes the request.
func describe(err error) string {
	s := strings.TrimPrefix(err.Error(), "json: ")
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
