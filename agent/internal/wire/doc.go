// Package wire is the language inside a stream: a request line of JSON, then messages of
// one byte of kind, four bytes of length and the payload. See docs/agent-protocol.md.
//
// What comes from the other side is bounded before it is stored: a request line by MaxRequest, a message by
// MaxMessage, and the payload of a message is read in pieces rather than allocated by the length it claims.
package wire

// Limits of the protocol.
const (
	MaxRequest = 1 << 20 // bytes of the request line, without its newline
	MaxMessage = 1 << 20 // bytes of one message's payload
	HeaderSize = 5       // kind and length
	Chunk      = 64 << 10
)

// Kind tells the messages of one direction apart.
type Kind byte

// Client to agent.
const (
	Data   Kind = 0
	Resize Kind = 1
	Signal Kind = 2
	Ack    Kind = 3
	End    Kind = 4 // in both directions
	Cancel Kind = 5
	Switch Kind = 6 // what follows goes over the lane
)

// Agent to client.
const (
	Reply  Kind = 0
	Stdout Kind = 1
	Stderr Kind = 2
	Exit   Kind = 3
	// 4 is End.
	Switched Kind = 5 // what follows comes over the lane
	Failed   Kind = 255
)
