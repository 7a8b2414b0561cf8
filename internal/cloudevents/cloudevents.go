// Package cloudevents contains what the CloudEvents 1.0 bindings to several protocols share.
package cloudevents

import "strings"

// PercentEncode encodes the value of an attribute for a header in the bindings to HTTP and NATS: everything
// except printable ASCII is encoded, and so are the space, the double quote and the percent sign.
func PercentEncode(value string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(value) {
		if c := value[i]; c > ' ' && c < 0x7f && c != '"' && c != '%' {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return b.String()
}
