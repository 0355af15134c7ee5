package tools
import ("testing";"os";"bufio";"fmt";"strings")
func TestZZ(t *testing.T){
 f,_:=os.Open(os.Getenv("ZZ")); if f==nil {t.Skip()}
 s:=bufio.NewScanner(f); s.Buffer(nil,1<<20)
 for s.Scan(){ l:=strings.ReplaceAll(s.Text(),`\n`,"\n"); if l==""||l[0]=='#'{continue}; j:=judgeLine(t,l,true)
 fmt.Printf("%-60q\n    T[%s] op=%q W=%q nc=%q wr=%v net=%v ref=%q bound=%v\n",l,keys(j),j.Opaque,j.Warnings,j.NotCovered,j.Writes,j.Network,j.Refuse,j.Bound)}
}
