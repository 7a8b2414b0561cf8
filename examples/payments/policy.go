package payments

import (
	"fmt"
	"net/http"
	"time"
)

const (
	// retention is how long an answer is stored. The guard and the policy for clients use this constant.
	retention = 24 * time.Hour
	// policyPath is the path of the page about keys, for clients.
	policyPath = "/idempotency"
)

// policy is the expiration policy that the draft of Idempotency-Key requires, for developers of clients.
var policy = fmt.Sprintf(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Idempotency keys of this API</title></head>
<body>
<h1>Idempotency keys of this API</h1>
<h2>Keys</h2>
<p>Every POST needs the header Idempotency-Key: 1 to 255 visible ASCII characters, best a random UUID, one for each
operation and the same for each of its attempts. Keys of two accounts are apart from each other.</p>
<h2>How long</h2>
<p>An answer is kept for %[1]d hours from when it was made, and a retry within that time gets it again, byte for byte, with
Idempotent-Replayed: true. Idempotency-Key-Expires says until when. An operation that is under way, or whose outcome is not
known yet, does not expire: ask again with the same key.</p>
<h2>After that</h2>
<p>The key is free, and a request with it is taken for a new one. Do not retry for longer than %[1]d hours: ask what became
of the operation instead.</p>
<h2>What is not kept</h2>
<p>An answer that only says something about the moment: 401, 408, 425, 429, 502, 503, 504, and every refusal of type
application/problem+json. The request may be sent again with the same key where it says "retryable": true.</p>
</body>
</html>
`, int(retention.Hours()))

func showPolicy(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "public, max-age=3600")
	_, _ = w.Write([]byte(policy)) // a client that has left does not read it
}

// linkPolicy adds a link to the policy. Header fields that are set before the guard are not part of a stored answer.
func linkPolicy(w http.ResponseWriter) {
	w.Header().Add("Link", "<"+policyPath+`>; rel="service-doc"; type="text/html"`)
}
