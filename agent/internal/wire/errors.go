package wire

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Code is the part of an error that a client acts on.
type Code string

// The codes of the protocol.
const (
	NotFound          Code = "not_found"
	Exists            Code = "exists"
	NotADirectory     Code = "not_a_directory"
	IsADirectory      Code = "is_a_directory"
	NotEmpty          Code = "not_empty"
	PermissionDenied  Code = "permission_denied"
	PathEscapes       Code = "path_escapes"
	OutsideRoots      Code = "outside_roots"
	ReadOnly          Code = "read_only"
	NoSpace           Code = "no_space"
	TooLarge          Code = "too_large"
	InvalidRequest    Code = "invalid_request"
	InvalidArchive    Code = "invalid_archive"
	UnknownOperation  Code = "unknown_operation"
	UnknownProcess    Code = "unknown_process"
	WrongBoot         Code = "wrong_boot"
	OutputLost        Code = "output_lost"
	UnsupportedUser   Code = "unsupported_user"
	CommandNotFound   Code = "command_not_found"
	NotExecutable     Code = "not_executable"
	TooMany           Code = "too_many"
	Timeout           Code = "timeout"
	ConnectionRefused Code = "connection_refused"
	Canceled          Code = "canceled"
	Stopping          Code = "stopping"
	IO                Code = "io"
)

// Error is what the client is told. Path is the path as the client knows it, Errno the system's name for it.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Path    Name   `json:"path,omitempty"`
	Errno   string `json:"errno,omitempty"`
}

func (e *Error) Error() string {
	if e.Path != "" {
		return fmt.Sprintf("%s: %s (%s)", e.Path, e.Message, e.Code)
	}
	return fmt.Sprintf("%s (%s)", e.Message, e.Code)
}

// Fail makes an error of the protocol.
func Fail(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// At says which path the error is about.
func (e *Error) At(path string) *Error {
	e.Path = Name(path)
	return e
}

var codes = map[syscall.Errno]Code{
	syscall.ENOENT:       NotFound,
	syscall.EEXIST:       Exists,
	syscall.ENOTDIR:      NotADirectory,
	syscall.EISDIR:       IsADirectory,
	syscall.ENOTEMPTY:    NotEmpty,
	syscall.EACCES:       PermissionDenied,
	syscall.EPERM:        PermissionDenied,
	syscall.EROFS:        ReadOnly,
	syscall.ENOSPC:       NoSpace,
	syscall.EDQUOT:       NoSpace,
	syscall.EFBIG:        TooLarge,
	syscall.ENAMETOOLONG: InvalidRequest,
	syscall.EINVAL:       InvalidRequest,
	syscall.ECONNREFUSED: ConnectionRefused,
	syscall.ETIMEDOUT:    Timeout,
}

// From turns any error into one of the protocol, about path unless it says otherwise itself. The text of Go's own
// errors is not passed on: it names paths relative to directories that the client never heard of.
func From(err error, path string) *Error {
	var e *Error
	if errors.As(err, &e) {
		if e.Path == "" && path != "" {
			located := *e
			return located.At(path)
		}
		return e
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		code, ok := codes[errno]
		if !ok {
			code = IO
		}
		return &Error{Code: code, Message: errno.Error(), Path: Name(path), Errno: unix.ErrnoName(errno)}
	}
	code := IO
	switch {
	case strings.HasSuffix(err.Error(), "path escapes from parent"): // os.Root has no name for it
		code = PathEscapes
	case errors.Is(err, fs.ErrNotExist):
		code = NotFound
	case errors.Is(err, fs.ErrExist):
		code = Exists
	case errors.Is(err, context.Canceled):
		code = Canceled
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		code = Timeout
	}
	return &Error{Code: code, Message: err.Error(), Path: Name(path)}
}
