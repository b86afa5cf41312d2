#pragma once
#include "base/element.cuh"
namespace warptile {
constexpr int FRAGMENT_ROWS = 16, FRAGMENT_COLUMNS = 8, FRAGMENT_DEPTH = 16;
// Two neighbours of a row, as numbers: each is read by many lanes.
template<class E> void widen_two(float*to,unsigned w){E x[2];memcpy(x,&w,4);to[0]=widen(x[0]);to[1]=widen(x[1]);}
template<class E> void mma(float(&c)[4],const unsigned(&a)[4],unsigned b0,unsigned b1){
  auto&p=EX.product; const int row=LANE/4,depth=LANE%4*2;
  for(int i=0;i<4;i++)widen_two<E>(&p.a[row+8*(i%2)][depth+8*(i/2)],a[i]);
  widen_two<E>(&p.b[row][depth],b0);widen_two<E>(&p.b[row][depth+8],b1); WB();
  for(int k=0;k<FRAGMENT_DEPTH;k++)for(int j=0;j<4;j++)c[j]+=p.a[row+8*(j/2)][k]*p.b[depth+j%2][k];
  WB();}
inline void lm(unsigned(&w)[4],unsigned a,bool t){EX.w[LANE][0]=a;WB();
  for(int m=0;m<4;m++){uint16_t e[2];for(int i=0;i<2;i++){int r=t?LANE%4*2+i:LANE/4,c=t?LANE/4:LANE%4*2+i;memcpy(&e[i],shared+EX.w[8*m+r][0]+2*c,2);} memcpy(&w[m],e,4);} WB();}
inline void load_matrices(unsigned(&w)[4],unsigned a){lm(w,a,false);} inline void load_matrices_transposed(unsigned(&w)[4],unsigned a){lm(w,a,true);}
inline uint2 load_two_words(unsigned a){uint2 two;memcpy(&two,shared+a,sizeof two);return two;}
inline void store_word(unsigned a,unsigned word){memcpy(shared+a,&word,sizeof word);}
inline void store_two(unsigned a,float2 two){memcpy(shared+a,&two,sizeof two);}
}
