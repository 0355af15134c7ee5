package tools

type Script struct {
	Opaque   string
	Commands []Simple
	Parents  []int
}
type Simple struct {
	Assigns []Assign
	Words   []Word
	Redirs  []Redir
	PipedIn bool
	Feeders []int
	Subst   bool
	Scope   int
	Repeats bool
	Maybe   bool
}
type Word struct {
	Raw    string
	Text   string
	Const  bool
	Prefix string
	Fields bool
	Var    string
}
type Assign struct {
	Name  string
	Value Word
}
type Redir struct {
	Fd     int
	Op     string
	Target Word
	Body   Word
}

func ParseShell(line string) Script { return Script{Opaque: "no parser yet"} }
