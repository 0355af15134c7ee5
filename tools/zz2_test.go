package tools
import ("testing";"os";"fmt";"strings")
func TestZ2(t *testing.T){
 b,_:=os.ReadFile("testdata/everyday.txt"); op,w,nc,task,n:=0,0,0,0,0
 for _,l:=range strings.Split(string(b),"\n"){ if l==""||l[0]=='#'{continue}; n++; l=strings.ReplaceAll(l,`\n`,"\n"); j:=judgeLine(t,l,true)
 k:=keys(j)
 switch { case j.Opaque!="": op++; fmt.Printf("OPAQUE %q: %s\n",l,j.Opaque)
 case len(j.Warnings)>0: w++; fmt.Printf("WARN %q: %q\n",l,j.Warnings)
 case j.NotCovered!="": nc++; fmt.Printf("NC %q: %q\n",l,j.NotCovered)
 case strings.Contains(k,"!"): task++; fmt.Printf("TASK %q: %s\n",l,k)
 default: if os.Getenv("ALL")!="" {fmt.Printf("OK %q %s net=%v wr=%v\n",l,k,j.Network,j.Writes)} }}
 fmt.Println(n,"opaque",op,"warn",w,"nc",nc,"task",task)
}
