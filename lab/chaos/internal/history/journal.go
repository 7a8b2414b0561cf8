package history

import (
	"errors"
	"sync"
	"sync/atomic"
)

// Journal is a node's account of its calls to the store: one line before each call and one after it. A call without its
// second line is one during which the node died. A Journal is safe for concurrent use.
type Journal struct {
	recorder *Recorder
	node     string
	seq      atomic.Uint64

	mu  sync.Mutex
	err error
}

// OpenJournal opens the journal of a node for appending. A node that is started again may go on with the file of its
// predecessor, even if that one is only paused: their sequence numbers do not meet.
func OpenJournal(path, node string) (*Journal, error) {
	recorder, err := NewRecorder(path)
	if err != nil {
		return nil, err
	}
	j := &Journal{recorder: recorder, node: node}
	// No process makes a call a nanosecond: one that starts later starts with a larger number than any used before.
	j.seq.Store(uint64(Now()))
	return j, nil
}

// Begin notes that a call is about to be made, and returns the number that End has to name. It fills in the node, the
// number, and the time unless that is there: a call of which only its result tells what it was about is noted
// afterwards.
func (j *Journal) Begin(w Write) (seq uint64) {
	w.Node, w.Seq, w.Ended = j.node, j.seq.Add(1), 0
	if w.Began == 0 {
		w.Began = Now()
	}
	j.write(&line{Begin: &w})
	return w.Seq
}

// End notes how the call with the number w.Seq came back. It fills in the node and the time; what is left empty stays
// as Begin had it.
func (j *Journal) End(w Write) {
	w.Ended = Now()
	w.Node, w.Began = j.node, 0
	j.write(&line{End: &w})
}

// Find notes a difference between the ledgers. It fills in the time.
func (j *Journal) Find(f Finding) {
	f.At = Now()
	j.write(&line{Finding: &f})
}

func (j *Journal) write(l *line) {
	err := j.recorder.write(l)
	if err == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = err
	}
}

// Err returns the first error of writing. A journal with gaps proves nothing: a node should stop when it sees one.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

// Close closes the file and returns the first error of writing, if there was one.
func (j *Journal) Close() error { return errors.Join(j.Err(), j.recorder.Close()) }
