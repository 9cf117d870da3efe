package mcbp

import "fmt"

// Opcode says what a frame asks for. A response repeats the opcode of its
// request.
type Opcode uint8

// The opcodes that this server serves. A quiet opcode (Q) differs from the
// loud one only in which answers are left out.
const (
	OpGet       Opcode = 0x00
	OpSet       Opcode = 0x01
	OpDelete    Opcode = 0x04
	OpQuit      Opcode = 0x07
	OpFlush     Opcode = 0x08
	OpGetQ      Opcode = 0x09
	OpNoop      Opcode = 0x0a
	OpVersion   Opcode = 0x0b
	OpGetK      Opcode = 0x0c
	OpGetKQ     Opcode = 0x0d
	OpStat      Opcode = 0x10
	OpSetQ      Opcode = 0x11
	OpDeleteQ   Opcode = 0x14
	OpQuitQ     Opcode = 0x17
	OpFlushQ    Opcode = 0x18
	OpVerbosity Opcode = 0x1b
)

// String returns the name of an opcode that is served, else its number.
func (o Opcode) String() string {
	if c := &commands[o]; c.run != nil {
		return c.name
	}
	return fmt.Sprintf("opcode 0x%02x", uint8(o))
}
