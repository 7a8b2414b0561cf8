package history

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Read puts a run together from its files. A last line that was cut off is left out: its writer was killed. Any other
// line that cannot be read is an error.
func Read(paths ...string) (*Run, error) { return read(false, paths) }

// ReadWindow is Read for files that were emptied while nodes went on: the end of a call that was begun before that is
// left out.
func ReadWindow(paths ...string) (*Run, error) { return read(true, paths) }

func read(emptied bool, paths []string) (*Run, error) {
	run := &Run{Faults: make(map[string]int)}
	for _, path := range paths {
		if err := readFile(run, path, emptied); err != nil {
			return nil, fmt.Errorf("history: read %s: %w", path, err)
		}
	}
	return run, nil
}

func readFile(run *Run, path string, emptied bool) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	// The file is only read: closing it cannot lose anything.
	defer func() { _ = file.Close() }()

	r := reader{run: run, open: make(map[call]int), emptied: emptied}
	lines := bufio.NewReaderSize(file, 1<<20)
	for number := 1; ; number++ {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			// A line without its newline was cut off; mostly there is none.
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.add(text); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
}

// reader adds the lines of one file to a run.
type reader struct {
	run *Run
	// open has the writes of this file that wait for their second line, by their index in the run.
	open map[call]int
	// emptied says that the file may have lost its beginning.
	emptied bool
}

// call names one call of a node.
type call struct {
	node string
	seq  uint64
}

func (r *reader) add(text []byte) error {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return err
	}
	switch {
	case l.Attempt != nil:
		r.run.Attempts = append(r.run.Attempts, *l.Attempt)
	case l.Begin != nil:
		r.open[call{l.Begin.Node, l.Begin.Seq}] = len(r.run.Writes)
		r.run.Writes = append(r.run.Writes, *l.Begin)
	case l.End != nil:
		return r.end(l.End)
	case l.Record != nil:
		r.run.Records = append(r.run.Records, *l.Record)
	case l.Effect != nil:
		r.run.Effects = append(r.run.Effects, *l.Effect)
	case l.Row != nil:
		r.run.Rows = append(r.run.Rows, *l.Row)
	case l.Stock != nil:
		r.run.Stock = append(r.run.Stock, *l.Stock)
	case l.Message != nil:
		r.run.Messages = append(r.run.Messages, *l.Message)
	case l.Act != nil:
		r.run.Acts = append(r.run.Acts, *l.Act)
	case l.Call != nil:
		r.run.Calls = append(r.run.Calls, *l.Call)
	case l.Audit != nil:
		r.run.Audits = append(r.run.Audits, *l.Audit)
	case l.Forgery != nil:
		r.run.Forgeries = append(r.run.Forgeries, *l.Forgery)
	case l.Finding != nil:
		r.run.Findings = append(r.run.Findings, *l.Finding)
	case l.Step != nil:
		r.run.Steps = append(r.run.Steps, *l.Step)
	case l.FailOver != nil:
		r.run.FailOvers = append(r.run.FailOvers, *l.FailOver)
	case l.FrontLoss != nil:
		r.run.FrontLosses = append(r.run.FrontLosses, *l.FrontLoss)
	case l.Slot != nil:
		r.run.Slots = append(r.run.Slots, *l.Slot)
	case l.Fault != nil:
		r.run.Faults[l.Fault.Name] += l.Fault.Times
	case l.Unsettled:
		r.run.Unsettled = true
	case l.Planned != "":
		r.run.Planned = append(r.run.Planned, l.Planned)
	default:
		return errors.New("the line holds nothing that is known: it was written by another version")
	}
	return nil
}

// end joins the second line of a write with its first one.
func (r *reader) end(end *Write) error {
	id := call{end.Node, end.Seq}
	index, ok := r.open[id]
	if !ok && r.emptied {
		return nil
	}
	if !ok {
		return fmt.Errorf("node %s ends call %d, which it did not begin", end.Node, end.Seq)
	}
	delete(r.open, id)
	begun := &r.run.Writes[index]
	joined := *end
	joined.Began = begun.Began
	joined.Call = cmp.Or(end.Call, begun.Call)
	joined.Scope = cmp.Or(end.Scope, begun.Scope)
	joined.Key = cmp.Or(end.Key, begun.Key)
	joined.Message = cmp.Or(end.Message, begun.Message)
	joined.Attempt = cmp.Or(end.Attempt, begun.Attempt)
	joined.Nonce = cmp.Or(end.Nonce, begun.Nonce)
	joined.Lease = cmp.Or(end.Lease, begun.Lease)
	joined.Digest = cmp.Or(end.Digest, begun.Digest)
	*begun = joined
	return nil
}
