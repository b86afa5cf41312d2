#include "shim.h"
inline uint4 ldg4(const uint4*p){return *p;}
#include "forward/decode.cuh"
#include <random>
using namespace warptile;
template<class T> int run_case(unsigned seed){
  std::mt19937 g(seed); auto R=[&](int a,int b){return a+(int)(g()%(unsigned)(b-a+1));};
  int B=R(1,5),KVH=R(1,3),G=R(1,6),H=KVH*G,D=8*R(1,T::HEAD_DIM/8),Q=R(1,5),K=R(0,700); int grid=R(1,7);
  bool klen=R(0,1),qlen=R(0,2)==0,causal=R(0,1),win=R(0,3)==0,sinks=R(0,2)==0,alibi=R(0,3)==0; float cap=R(0,3)==0?5.f:0;
  std::normal_distribution<float> n; size_t nq=(size_t)B*Q*H*D,nk=(size_t)B*K*KVH*D;
  std::vector<__half> q(nq+8),k(nk+8),v(nk+8),o(nq+8,(__half)NAN); std::vector<float> lse((size_t)B*H*Q,NAN),snk(H),slo(H);
  for(auto&x:q)x=(__half)n(g);for(auto&x:k)x=(__half)n(g);for(auto&x:v)x=(__half)n(g); for(auto&x:snk)x=n(g); for(auto&x:slo)x=0.1f*fabsf(n(g));
  std::vector<int> kl(B,K),ql(B,Q); for(int b=0;b<B;b++){ if(klen)kl[b]=R(0,3)?R(0,K):R(-5,K+50); if(qlen)ql[b]=R(-1,Q+1);} 
  std::vector<int> KL(B),QL(B); for(int b=0;b<B;b++){KL[b]=klen?std::min(K,std::max(kl[b],0)):K;QL[b]=qlen?std::min(Q,std::max(ql[b],0)):Q; for(int j=KL[b];j<K;j++)for(int x=0;x<KVH*D;x++){k[((size_t)b*K+j)*KVH*D+x]=(__half)NAN;v[((size_t)b*K+j)*KVH*D+x]=(__half)NAN;}}
  Forward p{}; p.heads=H;p.kv_heads=KVH;p.head_dim=p.value_dim=D; p.sequences.batch=B;p.sequences.query_len=Q;p.sequences.key_len=K;p.sequences.query_rows=Q;p.sequences.key_rows=K;
  if(klen){p.sequences.key_lengths=kl.data();p.sequences.ragged|=3;} if(qlen){p.sequences.query_lengths=ql.data();p.sequences.ragged|=1;}
  p.q={q.data(),(long long)Q*H*D,(long long)H*D,D};p.k={k.data(),(long long)K*KVH*D,(long long)KVH*D,D};p.v={v.data(),(long long)K*KVH*D,(long long)KVH*D,D};p.out={o.data(),(long long)Q*H*D,(long long)H*D,D};
  p.lse=lse.data();p.lse_batch=H*Q;p.lse_head=Q; p.scoring.scale=1/sqrtf(D);p.scoring.softcap=cap;p.scoring.window_left=win?R(0,200):WINDOW_UNLIMITED;p.scoring.window_right=causal?0:(win?R(0,100):WINDOW_UNLIMITED); p.scoring.align_top_left=R(0,4)==0;
  if(sinks)p.scoring.sinks=snk.data(); if(alibi)p.scoring.slopes=slo.data();
  bool paged=R(0,2)==0; int PR=paged?R(0,1)?16<<R(0,2):R(1,40):1, cols=(K+PR-1)/PR, spare=R(0,3), np=B*cols+spare+1; std::vector<__half> kp,vp; std::vector<int> tab;
  if(paged){ std::vector<int> perm(np);for(int i=0;i<np;i++)perm[i]=i;std::shuffle(perm.begin(),perm.end(),g); size_t row=(size_t)KVH*D; kp.assign((size_t)np*PR*row,(__half)NAN);vp=kp; tab.assign((size_t)B*(cols+1),0x7fffffff);
    for(int b=0;b<B;b++)for(int c=0;c<cols;c++){ if(c*PR>=KL[b])continue; int pg=perm[b*cols+c]; tab[b*(cols+1)+c]=pg; for(int r=0;r<PR;r++){int j=c*PR+r; if(j>=KL[b])break; memcpy(&kp[((size_t)pg*PR+r)*row],&k[((size_t)b*K+j)*row],row*2); memcpy(&vp[((size_t)pg*PR+r)*row],&v[((size_t)b*K+j)*row],row*2);} }
    p.pages.table=tab.data();p.pages.table_row=cols+1;p.pages.rows=PR;p.pages.count=np; p.k={kp.data(),(long long)PR*KVH*D,(long long)KVH*D,D};p.v={vp.data(),(long long)PR*KVH*D,(long long)KVH*D,D}; }
  bool splits=R(0,2)==0; if(splits)p.work.keys_per_split=T::BLOCK_N<<R(0,1);
  std::vector<unsigned> sem(grid,0); unsigned counter=0; size_t places=splits?(size_t)B*KVH*((Q*G+T::BLOCK_M-1)/T::BLOCK_M)*(K/p.work.keys_per_split+2):2*grid; std::vector<float> parts(places*T::BLOCK_M*(T::HEAD_DIM+2)+16,NAN); 
  float* pp=(float*)(((uintptr_t)parts.data()+15)/16*16);
  p.work.counter=&counter;p.work.semaphores=sem.data();p.work.partials=pp;
  if(getenv("DBG"))printf("paged%d PR%d splits%d ",paged,PR,splits),printf("B%d KVH%d G%d D%d Q%d K%d grid%d klen%d qlen%d causal%d win%d(%d,%d) sinks%d alibi%d cap%g tl%d\n",B,KVH,G,D,Q,K,grid,klen,qlen,causal,win,p.scoring.window_left,p.scoring.window_right,sinks,alibi,cap,p.scoring.align_top_left); if(getenv("DBG"))for(int b=0;b<B;b++)printf(" b%d q%d k%d\n",b,QL[b],KL[b]);
  gridDim.x=grid; std::vector<__half> first;
  for(int rep=0;rep<2;rep++){
    std::fill(o.begin(),o.end(),(__half)NAN);
    std::vector<int> order(grid);for(int i=0;i<grid;i++)order[i]=i; std::shuffle(order.begin(),order.end(),g);
    for(int c:order){ blockIdx.x=c; memset(warptile::shared,0xff,sizeof warptile::shared); std::barrier<> cb(T::THREADS); cta_bar=&cb; std::vector<std::unique_ptr<std::barrier<>>> wb; for(int w=0;w<T::WARPS;w++){wb.emplace_back(new std::barrier<>(32));warp_bar[w]=wb[w].get();}
      std::vector<std::thread> th; for(int t=0;t<T::THREADS;t++)th.emplace_back([&,t]{threadIdx.x=t;decode_attention<T>(p);}); for(auto&t:th)t.join(); }
    for(auto s:sem)if(s){printf("seed %u: semaphore %u\n",seed,s);return 1;} if(counter){printf("seed %u counter %u\n",seed,counter);return 1;}
    if(rep==0)first=o; else if(memcmp(first.data(),o.data(),nq*2)){printf("seed %u not repeatable\n",seed);return 1;}
  }
  double worst=0; 
  for(int b=0;b<B;b++)for(int h=0;h<H;h++)for(int t=0;t<Q;t++){
    __half*out=&o[((size_t)b*Q+t)*H*D+(size_t)h*D]; float L=lse[((size_t)b*H+h)*Q+t];
    if(t>=QL[b]){ for(int d=0;d<D;d++)if(out[d]==out[d]){printf("seed %u wrote a row of nobody\n",seed);return 1;} continue;}
    Mask m(p.scoring,QL[b],KL[b]); std::vector<double> s; std::vector<int> js; 
    for(int j=0;j<KL[b];j++)if(m.sees(t,j)){double x=0;for(int d=0;d<D;d++)x+=(double)(float)q[((size_t)b*Q+t)*H*D+h*D+d]*(double)(float)k[((size_t)b*K+j)*KVH*D+(h/G)*D+d]; x*=p.scoring.scale; if(cap>0)x=cap*tanh(x/cap); if(alibi)x-=slo[h]*fabs((double)(t+KL[b]-QL[b]-j)); s.push_back(x);js.push_back(j);}
    double M=sinks?snk[h]:-INFINITY; for(double x:s)M=std::max(M,x); double S=sinks?exp(snk[h]-M):0; for(double x:s)S+=exp(x-M);
    double LL=S>0?M+log(S):-INFINITY; if(!(LL==L||fabs(LL-L)<2e-4)){printf("seed %u lse %g %g (b%d h%d t%d B%d KVH%d G%d D%d Q%d K%d kl%d)\n",seed,L,LL,b,h,t,B,KVH,G,D,Q,K,KL[b]);return 1;}
    for(int d=0;d<D;d++){double r=0;for(size_t i=0;i<s.size();i++)r+=exp(s[i]-M)*(double)(float)v[((size_t)b*K+js[i])*KVH*D+(h/G)*D+d]; r=S>0?r/S:0; double e=fabs(r-(double)(float)out[d]); if(!(e<6e-3)){printf("seed %u out %g %g (b%d h%d t%d d%d B%d KVH%d G%d D%d Q%d K%d kl%d grid%d)\n",seed,(double)(float)out[d],r,b,h,t,d,B,KVH,G,D,Q,K,KL[b],grid);return 1;} worst=std::max(worst,e);} }
  return 0; }
int main(int c,char**a){ if(c>2)return run_case<DecodeTraits<__half,64,16,64,4,3>>(atoi(a[2])); int n=c>1?atoi(a[1]):20,bad=0; for(int i=1;i<=n;i++){bad+=run_case<DecodeTraits<__half,64,16,64,4,3>>(i); if(i%4==0)bad+=run_case<DecodeTraits<__half,128,16,128,8,3>>(1000+i); if(i%6==0)bad+=run_case<DecodeTraits<__half,256,16,64,4,3>>(2000+i); if(i%5==0)bad+=run_case<DecodeTraits<__half,64,32,128,4,3>>(3000+i); if(bad>3)break;} printf("%d cases, %d bad\n",n,bad);return bad;}
