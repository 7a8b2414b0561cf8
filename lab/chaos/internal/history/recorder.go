package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// Recorder appends lines to a file. It is safe for concurrent use.
type Recorder struct {
	mu   sync.Mutex
	file *os.File
}

// NewRecorder opens the file for appending, and makes it if need be. What an earlier process was writing when it was
// killed is cut off, so that it does not garble the next line.
func NewRecorder(path string) (*Recorder, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("history: open the file to record to: %w", err)
	}
	if err := dropCutOffLine(file); err != nil {
		return nil, errors.Join(fmt.Errorf("history: mend the end of %s: %w", path, err), file.Close())
	}
	return &Recorder{file: file}, nil
}

// Add records an attempt. When it returns nil, the line has been handed to the system: it survives the death of the
// process.
func (r *Recorder) Add(a Attempt) error { return r.write(&line{Attempt: &a}) }

// AddAct records an act of an operator.
func (r *Recorder) AddAct(a Act) error { return r.write(&line{Act: &a}) }

// AddCall records an operation of a caller.
func (r *Recorder) AddCall(c Call) error { return r.write(&line{Call: &c}) }

// AddForgery records a webhook that the provider did not send.
func (r *Recorder) AddForgery(f Forgery) error { return r.write(&line{Forgery: &f}) }

func (r *Recorder) write(l *line) error {
	text, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("history: encode a line: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.file.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("history: write a line: %w", err)
	}
	return nil
}

// Close closes the file.
func (r *Recorder) Close() error { return r.file.Close() }

// dropCutOffLine cuts the file behind its last newline.
func dropCutOffLine(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	end := info.Size()
	chunk := make([]byte, 64<<10)
	for end > 0 {
		start := max(0, end-int64(len(chunk)))
		part := chunk[:end-start]
		if _, err := file.ReadAt(part, start); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if last := bytes.LastIndexByte(part, '\n'); last >= 0 {
			end = start + int64(last) + 1
			break
		}
		end = start
	}
	if end == info.Size() {
		return nil
	}
	return file.Truncate(end)
}
