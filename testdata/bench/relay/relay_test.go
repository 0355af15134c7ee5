// Package relay measures what picket's server adds to the stream of a model,
// against two bare relays over the same stub: one that parses each chunk and
// flushes its own, and one that copies bytes. Each is a process of its own:
//
//	go test -bench . -benchtime 9x
//
// The metrics of the benchmarks are medians of ratios within one round: xEach is
// chunks a second over the parsing relay's, cpuEach CPU time a chunk over its, and
// xCopy the time to the first token that picket adds over what the copy adds. MB
// is the memory of the server in the end.
package relay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const text = "fifty bytes of an answer, as a model would say it. "

// TestMain is the relay too, if the environment says so.
func TestMain(m *testing.M) {
	if kind := os.Getenv("RELAY"); kind != "" {
		serveRelay(kind, os.Getenv("RELAY_STUB"))
	}
	os.Exit(m.Run())
}

type chunk struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
}

type choice struct {
	Index int `json:"index"`
	Delta struct {
		Content string `json:"content"`
	} `json:"delta"`
	Finish *string `json:"finish_reason"`
}

func serveRelay(kind, stub string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(os.Stderr, "serving on http://"+l.Addr().String()+";")
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100}}
	panic(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, _ := http.NewRequestWithContext(r.Context(), "POST", stub, r.Body)
		resp, err := client.Do(req)
		if err != nil {
			w.WriteHeader(502)
			return
		}
		defer resp.Body.Close()
		w.Header().Set("Content-Type", "text/event-stream")
		f := w.(http.Flusher)
		if kind == "copy" {
			buf := make([]byte, 32<<10)
			for {
				n, err := resp.Body.Read(buf)
				w.Write(buf[:n])
				f.Flush()
				if err != nil {
					return
				}
			}
		}
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			data, ok := bytes.CutPrefix(s.Bytes(), []byte("data: "))
			if !ok {
				continue
			}
			var c chunk
			if json.Unmarshal(data, &c) == nil {
				c.ID = "own"
				data, _ = json.Marshal(c)
			}
			w.Write(append(append([]byte("data: "), data...), "\n\n"...))
			f.Flush()
		}
	})))
}

// stub is the model: n chunks, flushed by 64, or for n = 0 ten of them, flushed
// one by one with a pause.
func stub(b *testing.B) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	event := func(delta, finish string) []byte {
		return fmt.Appendf(nil, `data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1700000000,"model":"stub","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}`+"\n\n", delta, finish)
	}
	piece := event(`{"content":"`+text+`"}`, "null")
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n := 0
		if m := regexp.MustCompile(`chunks=(\d+)`).FindSubmatch(body); m != nil {
			n, _ = strconv.Atoi(string(m[1]))
		}
		w.Header().Set("Content-Type", "text/event-stream")
		f := w.(http.Flusher)
		for i := range n {
			if w.Write(piece); i%64 == 63 {
				f.Flush()
			}
		}
		for i := 0; n == 0 && i < 10; i++ {
			w.Write(piece)
			f.Flush()
			time.Sleep(5 * time.Millisecond)
		}
		w.Write(event(`{}`, `"stop"`))
		io.WriteString(w, "data: [DONE]\n\n")
	})}
	go srv.Serve(l)
	b.Cleanup(func() { srv.Close() })
	return "http://" + l.Addr().String() + "/v1"
}

// A target is a process that is measured.
type target struct {
	base, key string
	pid       int
}

func start(b *testing.B, env []string, argv ...string) target {
	b.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = env, b.TempDir()
	diag, err := cmd.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for r := bufio.NewScanner(diag); r.Scan(); {
		if m := regexp.MustCompile(`serving on (http://\S+);`).FindStringSubmatch(r.Text()); m != nil {
			go io.Copy(io.Discard, diag)
			return target{base: m[1], pid: cmd.Process.Pid}
		}
	}
	b.Fatal("it did not start")
	return target{}
}

func picket(b *testing.B, model string) target {
	b.Helper()
	dir := b.TempDir()
	bin := filepath.Join(dir, "picket")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin, ".")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	if err := os.MkdirAll(filepath.Join(dir, "own", "config"), 0o700); err != nil {
		b.Fatal(err)
	}
	config := `{"openai_api":{"max_chats":1000000},"model":{"context_tokens":4096}}`
	if err := os.WriteFile(filepath.Join(dir, "own", "config", "config.json"), []byte(config), 0o600); err != nil {
		b.Fatal(err)
	}
	env := []string{"PICKET_HOME=" + filepath.Join(dir, "own"), "HOME=" + dir, "PATH=" + os.Getenv("PATH"), "PICKET_LISTEN=127.0.0.1:0"}
	run := func(args ...string) string {
		cmd := exec.Command(bin, args...)
		cmd.Env, cmd.Dir = env, dir
		out, err := cmd.Output()
		if err != nil {
			b.Fatalf("picket %v: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	run("api", "on")
	key := run("api", "key")
	t := start(b, env, bin, "serve", "--base-url", model, "--model", "stub")
	t.key = key
	return t
}

var client = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100}}

var serial int

// ask streams one answer; it returns how many of the model's chunks came and the
// time to the first.
func (t target) ask(b *testing.B, user int, chunks int) (n int, first time.Duration) {
	path := ""
	if t.key != "" || !strings.HasSuffix(t.base, "/v1") {
		path = "/v1"
	}
	body := fmt.Sprintf(`{"user":"u%d","stream":true,"messages":[{"role":"user","content":"chunks=%d"}]}`, user, chunks)
	req, _ := http.NewRequest("POST", t.base+path+"/chat/completions", strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+t.key)
	begin := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		b.Error(err)
		return
	}
	defer resp.Body.Close()
	mark := []byte("fifty")
	for r := bufio.NewReaderSize(resp.Body, 1<<20); ; {
		line, err := r.ReadSlice('\n')
		if got := bytes.Count(line, mark); got > 0 { // picket joins what came at once
			if n == 0 {
				first = time.Since(begin)
			}
			n += got
		}
		if err != nil {
			return n, first
		}
	}
}

// round asks for streams at once; it returns chunks a second and the median time
// to the first.
func (t target) round(b *testing.B, streams, chunks int) (rate float64, first float64) {
	var all sync.WaitGroup
	var mu sync.Mutex
	var firsts []float64
	serial += streams
	total, begin := 0, time.Now()
	for i := range streams {
		user := serial + i
		all.Go(func() {
			n, f := t.ask(b, user, chunks)
			mu.Lock()
			defer mu.Unlock()
			total += n
			firsts = append(firsts, f.Seconds())
		})
	}
	all.Wait()
	if want := streams * max(chunks, 10); total != want {
		b.Fatalf("%d chunks came, not %d", total, want)
	}
	return float64(total) / time.Since(begin).Seconds(), median(firsts)
}

// cpu is the time that the process has used, in seconds.
func (t target) cpu(b *testing.B) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", t.pid))
	if err != nil {
		b.Skip("needs /proc (Linux)")
	}
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100
}

func (t target) memory(b *testing.B) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", t.pid))
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(data)
	if err != nil || m == nil {
		b.Skip("needs /proc (Linux)")
	}
	kb, _ := strconv.ParseFloat(string(m[1]), 64)
	return kb / 1024
}

func setup(b *testing.B) (direct, own, each, raw target) {
	model := stub(b)
	relay := func(kind string) target {
		return start(b, append(os.Environ(), "RELAY="+kind, "RELAY_STUB="+model+"/chat/completions"), os.Args[0])
	}
	return target{base: model}, picket(b, model), relay("each"), relay("copy")
}

var counts = []int{1, 16, 64}

func BenchmarkThroughput(b *testing.B) {
	_, own, each, raw := setup(b)
	b.Logf("idle: %.1f MB", own.memory(b))
	for _, c := range counts {
		b.Run(fmt.Sprint(c), func(b *testing.B) {
			chunks := max(500, 20000/c)
			var rates, toEach, toCopy, cpu []float64
			for b.Loop() {
				c0, c1 := own.cpu(b), each.cpu(b)
				o, _ := own.round(b, c, chunks)
				e, _ := each.round(b, c, chunks)
				r, _ := raw.round(b, c, chunks)
				rates, toEach, toCopy = append(rates, o), append(toEach, o/e), append(toCopy, o/r)
				if used := each.cpu(b) - c1; used > 0 {
					cpu = append(cpu, (own.cpu(b)-c0)/used)
				}
			}
			b.ReportMetric(median(rates), "chunks/s")
			b.ReportMetric(median(toEach), "xEach")
			b.ReportMetric(median(toCopy), "xCopyRate")
			b.ReportMetric(median(cpu), "cpuEach")
			b.ReportMetric(own.memory(b), "MB")
		})
	}
}

func BenchmarkFirstToken(b *testing.B) {
	direct, own, each, raw := setup(b)
	for _, c := range counts {
		b.Run(fmt.Sprint(c), func(b *testing.B) {
			var d, o, e, r []float64
			for b.Loop() {
				for t, list := range map[*target]*[]float64{&direct: &d, &own: &o, &each: &e, &raw: &r} {
					_, f := t.round(b, c, 0)
					*list = append(*list, f)
				}
			}
			base := median(d)
			b.ReportMetric(1e3*base, "msDirect")
			b.ReportMetric(1e3*(median(o)-base), "msAdded")
			b.ReportMetric(1e3*(median(e)-base), "msAddedEach")
			b.ReportMetric(1e3*(median(r)-base), "msAddedCopy")
			b.ReportMetric((median(o)-base)/(median(r)-base), "xCopy")
		})
	}
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[len(list)/2]
}
