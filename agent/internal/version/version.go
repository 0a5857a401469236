// Package version says which agent this is.
package version

// Agent is the version of this binary; a release build sets it with -ldflags "-X …/version.Agent=1.2.3".
var Agent = "0.1.0"

// Protocol is the version of docs/agent-protocol.md that is spoken here.
const Protocol = 1
