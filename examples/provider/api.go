package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotent-Replayed"

	maxBody      = 1 << 20
	maxKey       = 255
	maxPage      = 1000
	defaultLimit = 100
)

// answer is the result of a request. It is separate from the response, because a fault may discard it.
type answer struct {
	status   int
	body     any
	replayed bool
	event    *Event
}

// task is a request that was read and is valid, but was not executed yet.
type task struct {
	// reference is the reference of the request's charge, which the rules of the faults can match.
	reference string
	do        func() answer
}

// api returns a handler with faults.
func (p *Provider) api(read func(*http.Request) (task, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		t, err := read(r)
		if err != nil {
			p.write(w, failed(err))
			return
		}
		p.perform(w, r, t)
	}
}

// perform executes the task, with the faults before and after it. Without a fault the
// event is sent after the answer, so that a test without faults sees them in this order.
func (p *Provider) perform(w http.ResponseWriter, r *http.Request, t task) {
	subject := Match{Method: r.Method, Path: r.URL.Path, Reference: t.reference}
	fault := p.script.pick(subject, Kind.onRequest)
	if fault.Kind.before() && !p.strike(w, r, fault) {
		return
	}
	done := t.do()
	hook := p.webhookFault(subject, done.event)
	early := hook.Kind == WebhookFirst || fault.Kind.after()
	if early {
		p.courier.announce(done.event, hook)
	}
	if fault.Kind.after() && !p.strike(w, r, fault) {
		return
	}
	p.write(w, done)
	if !early {
		p.courier.announce(done.event, hook)
	}
}

// webhookFault uses up a rule about webhooks only if there is an event for it.
func (p *Provider) webhookFault(subject Match, event *Event) fault {
	if event == nil {
		return fault{}
	}
	f := p.script.pick(subject, Kind.onWebhook)
	p.script.arrive(f)
	return f
}

func (p *Provider) postCharge(r *http.Request) (task, error) {
	var req ChargeRequest
	key, err := readOrder(r, &req)
	if err != nil {
		return task{}, err
	}
	if err := req.validate(); err != nil {
		return task{}, err
	}
	do := func() answer {
		charge, replayed, err := p.book.charge(key, req)
		if err != nil {
			return failed(err)
		}
		done := answer{status: http.StatusCreated, body: charge, replayed: replayed}
		if charge.Status == Declined {
			done.status = http.StatusPaymentRequired
		}
		if !replayed {
			done.event = eventOf(charge)
		}
		return done
	}
	return task{reference: req.Reference, do: do}, nil
}

func (p *Provider) postRefund(r *http.Request) (task, error) {
	var req RefundRequest
	key, err := readOrder(r, &req)
	if err != nil {
		return task{}, err
	}
	if err := req.validate(); err != nil {
		return task{}, err
	}
	charge, _ := p.book.find(req.Charge)
	do := func() answer {
		refund, replayed, err := p.book.refund(key, req)
		if err != nil {
			return failed(err)
		}
		done := answer{status: http.StatusCreated, body: refund, replayed: replayed}
		if !replayed {
			done.event = refundEvent(refund)
		}
		return done
	}
	return task{reference: charge.Reference, do: do}, nil
}

func (p *Provider) getCharge(r *http.Request) (task, error) {
	id := r.PathValue("id")
	charge, _ := p.book.find(id)
	do := func() answer {
		// The charge is looked up again: it must include changes made while the request was held.
		charge, ok := p.book.find(id)
		if !ok {
			return failed(notFound(id))
		}
		return answer{status: http.StatusOK, body: charge}
	}
	return task{reference: charge.Reference, do: do}, nil
}

func (p *Provider) listCharges(r *http.Request) (task, error) {
	q, err := readQuery(r.URL.Query())
	if err != nil {
		return task{}, err
	}
	do := func() answer { return answer{status: http.StatusOK, body: p.book.list(q)} }
	return task{reference: q.reference, do: do}, nil
}

// listRefunds gives the faults no reference to match: faults match the
// reference of a charge, and a query has at most the reference of a refund.
func (p *Provider) listRefunds(r *http.Request) (task, error) {
	q, err := readQuery(r.URL.Query())
	if err != nil {
		return task{}, err
	}
	return task{do: func() answer { return answer{status: http.StatusOK, body: p.book.listRefunds(q)} }}, nil
}

func readQuery(values url.Values) (query, error) {
	q := query{
		key: values.Get("idempotency_key"), reference: values.Get("reference"), after: values.Get("after"),
		limit: defaultLimit,
	}
	// An empty value is a mistake of the caller. If it meant no
	// restriction, the caller would find the effects of other callers.
	for _, name := range []string{"idempotency_key", "reference"} {
		if values.Has(name) && values.Get(name) == "" {
			return query{}, invalid(name + " must not be empty")
		}
	}
	if text := values.Get("limit"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 || limit > maxPage {
			return query{}, invalid("limit must be a number from 1 to " + strconv.Itoa(maxPage))
		}
		q.limit = limit
	}
	for name, at := range map[string]*time.Time{"created_from": &q.from, "created_to": &q.to} {
		text := values.Get(name)
		if text == "" {
			continue
		}
		parsed, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return query{}, invalid(name + " must be a time as in RFC 3339")
		}
		*at = parsed
	}
	return q, nil
}

// readOrder reads the key and the body of a request for an effect.
func readOrder(r *http.Request, into any) (key string, err error) {
	key = r.Header.Get(keyHeader)
	if len(key) > maxKey {
		return "", invalid("the Idempotency-Key is too long")
	}
	return key, readJSON(r, into)
}

// readJSON reads the body to its end, because net/http only then notices that a client leaves.
func readJSON(r *http.Request, into any) error {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err != nil {
		return invalid("the body cannot be read: " + err.Error())
	}
	if err := decodeStrictly(body, into); err != nil {
		return invalid("the body is not what is expected: " + err.Error())
	}
	return nil
}

// decodeStrictly refuses unknown fields: a misspelt rule or request must not be taken for another.
func decodeStrictly(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}

func failed(err error) answer {
	var known *problem
	if !errors.As(err, &known) {
		known = &problem{http.StatusInternalServerError, codeInternal, err.Error()}
	}
	return answer{status: known.status, body: problemDocument{known}}
}

// write sends the answer at once, so that it is sent before anything that follows it.
func (p *Provider) write(w http.ResponseWriter, a answer) {
	body, err := json.Marshal(a.body)
	if err != nil {
		p.log.Error("the provider cannot encode an answer", "error", err)
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if a.replayed {
		w.Header().Set(replayedHeader, "true")
	}
	w.WriteHeader(a.status)
	// The client may have left. The effect stays, and the client must find out about it.
	_, _ = w.Write(body)
	// Whether the client received the answer does not matter here either.
	_ = http.NewResponseController(w).Flush()
}
